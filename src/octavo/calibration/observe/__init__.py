"""Running a model on samples and observing what values its tensors take."""
