"""Sound as samples: WAV files, and the inputs that models of speech make of them."""
