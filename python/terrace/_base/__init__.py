"""What every part of the package stands on."""
