"""The nouns, and arithmetic on arrays. Needs numpy and ml_dtypes; knows no model and no runtime."""
