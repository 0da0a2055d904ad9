"""Optional: object detection. COCO metrics need ``pip install 'octavo[coco]'``.

==================  ===================================================================
annotations         COCO annotation files, and class numbers as category ids
boxes               boxes in images and in model inputs, and non-maximum suppression
decoders            outputs of YOLO and SSD models as boxes, scores and classes
coco                average precision as COCO defines it, also over resampled images
reader_classes      readers and an evaluator in the form of ONNX Runtime's examples
==================  ===================================================================
"""
