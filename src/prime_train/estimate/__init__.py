"""What a run needs and costs: memory, time and money, each as named terms or as an interval. Pure."""
