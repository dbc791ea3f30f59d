# Text to train on, for the scripts beside this file. Sourced, not run.

# So many bytes of upipe's own sources, over and over. A model learns constant text within steps, and products of
# gradients that are zero draw less power and run faster than a real step's.
text() { # BYTES
  local root
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  python3 - "$1" "$root"/docs/*.md "$root"/src/*/*.c "$root"/trainer/*.c <<'END'
import sys
once = b"".join(open(name, "rb").read() for name in sys.argv[2:])
size = int(sys.argv[1])
sys.stdout.buffer.write((once * (size // len(once) + 1))[:size])
END
}
