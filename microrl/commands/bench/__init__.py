"""What `microrl bench` measures, one file a command."""
