"""What a mesh needs of the machines that it is given, from a model's shape and the settings alone. Pure."""
