"""params.yaml as types: the settings, changes to them, and the page that explains each."""
