"""What several rooms' tests share; ``tests`` is on the path, so import ``support``."""
