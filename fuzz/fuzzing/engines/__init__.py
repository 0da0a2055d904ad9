"""What chooses the next input: coverage with libFuzzer (atheris), hypothesis, or a loop of our own."""
