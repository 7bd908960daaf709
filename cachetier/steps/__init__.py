"""Operations on whole steps, the same for every door: seal, look, wait, flush, delete, pin."""
