// fio beside ours: the same file, equally large and equally huge buffers, one
// second a run. fio is a peer's benchmark, never a part of this program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aio/engine.h"
#include "bench/rounds.h"

namespace terrace::bench {

// One thread at a time.
class Fio {
 public:
  // `fd`, of `size_bytes`, is written by writing runs. Unavailable: no fio, or
  // no right to mount a file system of huge pages, without which its buffers
  // would lie in 4 KiB pages and the comparison would mean nothing.
  static absl::StatusOr<std::unique_ptr<Fio>> Create(int fd,
                                                     int64_t size_bytes);
  ~Fio();
  Fio(const Fio&) = delete;
  Fio& operator=(const Fio&) = delete;

  // One second of 1 MiB requests, 8 of them at a time.
  absl::StatusOr<Sample> Run(IoDirection direction);

  const std::string& version() const { return version_; }

 private:
  Fio() = default;

  std::string file_;    // the descriptor, as another process can open it
  std::string folder_;  // where each run mounts its own huge pages
  int64_t size_bytes_ = 0;
  std::string version_;
};

}  // namespace terrace::bench
