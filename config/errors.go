package config

// ValueError refuses a value. Its text is what a client sees beside INVALID_CONFIG; Kafka's clients and tools look for
// "Invalid value".
type ValueError struct {
	Name, Value string
	Null        bool   // there was no value at all
	Reason      string // why, beginning with a capital letter
	Sensitive   bool   // the value must not be repeated
}

// Error names option, value and what would be right.
func (e *ValueError) Error() string {
	v := e.Value
	switch {
	case e.Null:
		v = "null"
	case e.Sensitive:
		v = "[hidden]"
	}
	s := "Invalid value " + v + " for configuration " + e.Name
	if e.Reason == "" {
		return s
	}
	return s + ": " + e.Reason
}

// UnknownError refuses a name that is no option of the scope.
type UnknownError struct {
	Scope   Scope
	Name    string
	Suggest string // the nearest known name, or empty
}

// Error is Kafka's sentence, with the nearest known name when there is one.
func (e *UnknownError) Error() string {
	s := "Unknown " + e.Scope.String() + " config name: " + e.Name
	if e.Suggest != "" {
		s += " (did you mean " + e.Suggest + "?)"
	}
	return s
}

// ConflictError refuses values that are right by themselves but not together.
type ConflictError struct {
	Names  []string
	Reason string
}

// Error is a sentence naming the options.
func (e *ConflictError) Error() string { return e.Reason }
