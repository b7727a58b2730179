package broker

// resize returns s with length n, reusing its memory if that suffices. The elements are to be overwritten.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
