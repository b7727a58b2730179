package storage

import "github.com/karstlog/karst/internal/vfs"

type VerifyOptions struct{}
type Report struct{}

func Verify(fs vfs.FS, dir string, o VerifyOptions) (Report, error) { return Report{}, nil }
