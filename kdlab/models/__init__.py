"""Models: timm and torchvision by name, and the small CIFAR networks of the field."""
