"""What a store keeps on disk: folder, index, extents, checksums."""
