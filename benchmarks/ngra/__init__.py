"""Programs on vertices and edges, and graphs that stream (NGra, section 6), for programs.py and streaming.py."""
