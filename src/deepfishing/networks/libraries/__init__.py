"""Networks of other libraries: timm, torchvision, transformers and open_clip.

Each module here has `load`, which makes a model from its name, and `describe`, which reads from a
model what its library knows about it: preprocessing, class names, and the embedding.
"""
