"""Files of a store on disk: folder, index, extents, data files, checksums."""
