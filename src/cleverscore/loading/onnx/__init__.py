"""ONNX files as torch modules."""
