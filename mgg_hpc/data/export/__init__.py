"""Graph files as files of other formats, written in bounded memory and in the numbering of their import."""
