package metadata

import "fmt"

// maxTopicName leaves room for "-" and a partition number in a file name of 255 bytes.
const maxTopicName = 249

// CheckTopicName tells whether a topic may have this name: 1 to 249 of [a-zA-Z0-9._-], and neither "." nor "..". The
// name becomes part of a directory's name, so this is checked on the way in, when a command is applied and when a
// snapshot is read. The error is a *TopicNameError.
func CheckTopicName(name string) error {
	refuse := func(format string, args ...any) error {
		return &TopicNameError{Name: name, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case name == "":
		return refuse("the empty string is not allowed")
	case name == "." || name == "..":
		return refuse("'.' and '..' are not allowed")
	case len(name) > maxTopicName:
		return refuse("the length of %.40q... is longer than the max allowed length %d", name, maxTopicName)
	}
	for i := range len(name) {
		if !topicNameByte(name[i]) {
			return refuse("%q contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'", name)
		}
	}
	return nil
}

func topicNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// IsKafkasOwn tells whether Apache Kafka keeps a topic of this name for itself that has no counterpart here. Nobody may
// create it, and its logs in directories that Kafka wrote are left as they are.
func IsKafkasOwn(name string) bool {
	switch name {
	case "__transaction_state", "__share_group_state", "__cluster_metadata":
		return true
	}
	return false
}
