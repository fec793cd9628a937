"""Networks of other libraries: timm, torchvision, transformers and open_clip.

Each module here has `load`, which makes a model from its name, and `describe`, which reads from a
model the facts of its library: preprocessing, class names, and the embedding.
"""
