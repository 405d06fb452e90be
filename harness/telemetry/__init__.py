"""What a server says about itself and what it costs: metrics, memory, trouble in its log."""
