"""The environments that come with microrl, one a file: `--env NAME`. Their names are in `microrl/config/environment.py`."""
