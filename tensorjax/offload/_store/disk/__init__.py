"""Layout of a store on disk: folder, index and its commits, extents, checksums."""
