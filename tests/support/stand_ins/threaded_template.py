"""A template with a second thread, which no fork would have."""

from __future__ import annotations

import sys
import threading

from nestling.worker import template_io

threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.exit(template_io.main(sys.argv))
