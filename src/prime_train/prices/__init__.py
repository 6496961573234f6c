"""What GPUs cost: a dated table, what fills it (catalogues, price services) and the file it is kept in."""
