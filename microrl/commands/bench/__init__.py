"""What `microrl bench` and `microrl doctor --measure` measure."""
