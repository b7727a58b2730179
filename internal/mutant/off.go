//go:build !mutant

// Package mutant switches faults on that were put in on purpose, so that the tests can be tested: a build with tag
// "mutant" and KARST_MUTANT=M7 in its environment breaks rule 7, and some test must then fail. In an ordinary build On
// is the constant false and the compiler removes the branch.
package mutant

// On tells whether mutant n is switched on.
func On(n int) bool { return false }
