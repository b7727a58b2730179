# Two stages: a static binary, and nothing but that binary. Build for another platform with --platform.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=dev COMMIT=unknown DATE=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
      -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT -X main.date=$DATE" -o /out/kctl ./cmd/kctl \
 && mkdir -p /out/data

FROM scratch
COPY --from=build /out/kctl /kctl
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
VOLUME /data
EXPOSE 9092 9093 7946/tcp 7946/udp 9644
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=2s --start-period=30s CMD ["/kctl", "check", "health"]
ENTRYPOINT ["/kctl"]
CMD ["serve", "--data", "/data", "--listen", "PLAINTEXT://0.0.0.0:9092", "--advertise", "PLAINTEXT://localhost:9092", "--http-addr", "0.0.0.0:9644"]
