"""Who proposes which tokens, and how many.

Must not know how proposals are judged, or which sequences run.
"""
