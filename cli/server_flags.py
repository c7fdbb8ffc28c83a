"""The flags of servers: addresses, keys, origins, slots. A part of table.py, which says what else holds."""

from functools import partial
from pathlib import Path

from pymtp.server.settings import ServerSettings

from . import parsers
from .flags import Flag
from .parsers import integer

_flag, _serve = Flag, partial(Flag, on="serve")

# fmt: off
SERVER = [
    _flag("host", "-H --host ADDRESS", str, "IPv4 address to listen on.", default="127.0.0.1", on="rpc-server"),
    _serve("host", "--host HOST,...", parsers.names, "Addresses to listen on.", default="127.0.0.1"),
    _flag("port", "-p --port N", integer(1, 65535), "Port to listen on.", default=50052, on="rpc-server"),
    _serve("port", "--port N", integer(0, 65535), "Port to listen on; 0: any free one.", default=8080),
    _serve("aliases", "-a --alias NAME,...", parsers.names, "Names of the model.  [default: its file's]"),
    _serve("tags", "--tags TAG,...", parsers.names, "Tags of the model, shown by /v1/models."),
    _serve("has_page", "--ui/--no-ui", help="Serve the chat page at /.", default=ServerSettings.has_page),
    _serve("has_metrics", "--metrics", help="Answer /metrics."),
    _serve("api_keys", "--api-key KEY,...", parsers.names, "Keys; each request needs one of them."),
    _serve("api_key_file", "--api-key-file FILE", Path, "Keys from FILE, one per line."),
    _serve("ssl_key_file", "--ssl-key-file FILE", Path, "Key of a certificate, for HTTPS."),
    _serve("ssl_cert_file", "--ssl-cert-file FILE", Path, "Certificate, for HTTPS."),
    _serve("api_prefix", "--api-prefix PATH", str, "What all paths begin with, such as /llm.", default=""),
    _serve("ping_s", "--sse-ping-interval S", integer(-1), default=int(ServerSettings.ping_s),
           help="Seconds of silence after which a stream gets a comment; -1: none."),
    _serve("timeout_s", "-to --timeout S", default=ServerSettings.timeout_s, kind=float, min=1,
           help="Seconds within which a request's body must arrive."),
    _serve("n_queue_max", "--queue-max N", integer(0),
           "Requests that may wait for a slot; more are refused with 429.", default=ServerSettings.n_queue_max),
    _serve("deadline_s", "--deadline S", default=ServerSettings.deadline_s, kind=float, min=0,
           help="Seconds within which an answer has to be complete; it is cut then. 0: no limit."),
]

ORIGINS = [
    _serve("cors_origins", "--cors-origins ORIGIN|localhost|*", str,
           "Origins whose pages may use the server.", default=ServerSettings.cors_origins),
    _serve("cors_methods", "--cors-methods METHODS", str,
           "Methods that these pages may use.", default=ServerSettings.cors_methods),
    _serve("cors_headers", "--cors-headers HEADERS", str,
           "Headers that they may send.", default=ServerSettings.cors_headers),
    _serve("cors_credentials", "--cors-credentials/--no-cors-credentials", default=ServerSettings.cors_credentials,
           help="Whether they may send cookies and keys."),
]

SLOTS = [
    _serve("n_slots", "-np --parallel N", integer(1, 256),
           "Slots: requests that run at the same time.  [default: 4]"),
    _serve("kv_unified", "-kvu/-no-kvu --kv-unified/--no-kv-unified", kind=bool | None,
           help="All slots share a cache of -c tokens, or each has an equal part.  [default: shared, unless -np "
           "is given]"),
    _serve("has_context_shift", "--context-shift/--no-context-shift",
           help="When the context is full, drop its oldest part instead of ending the text."),
    _serve("n_keep", "--keep N", integer(-1), default=0,
           help="First tokens that this does not drop; -1: all of the prompt."),
    _serve("has_slots", "--slots/--no-slots", help="Answer /slots.", default=ServerSettings.has_slots),
]

KEPT = [
    _serve("cache_prompt", "--cache-prompt/--no-cache-prompt", default=True,
           help="Reuse the part of a prompt that a slot holds."),
    _serve("shares_cache", "--cache-shared",
           help="Reuse prompts across API keys, too. Response times then reveal what others have sent."),
    _serve("cache_mib", "-cram --cache-ram MIB", integer(0),
           "Host memory for prompts that slots no longer hold, at most half of what is free; 0: none.",
           default=ServerSettings.cache_bytes >> 20),
    _serve("cache_dir", "--cache-dir FOLDER", Path,
           "Folder that keeps prompts of idle slots over restarts, readable by this user alone.  [default: none]"),
    _serve("cache_disk_mib", "--cache-disk MIB", integer(1),
           "Room for prompts in --cache-dir.", default=ServerSettings.cache_disk_bytes >> 20),
    _serve("slot_save_path", "--slot-save-path FOLDER", Path,
           "Folder for saved slots.  [default: slots cannot be saved]"),
]
# fmt: on
