"""What steps share: a layer as one matrix for each group, statistics of its inputs, errors of its outputs."""
