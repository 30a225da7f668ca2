"""What a run leaves behind and shows: metrics, run folder, console."""
