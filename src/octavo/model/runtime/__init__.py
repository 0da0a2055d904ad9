"""ONNX Runtime: sessions, their inputs, and checks that a model runs. Nothing else imports it."""
