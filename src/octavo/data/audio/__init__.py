"""Sound as samples: WAV files, and the inputs that speech models compute from them."""
