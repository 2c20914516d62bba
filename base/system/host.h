// Which machine this is, and which of its starts: what tells a file's owner on
// a file system that several machines have, where a lock may count on one of
// them only. Text that fits a file's name. Thread-safe.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace terrace {

// "<name>-<machine>-<boot>": the host's name as far as it is letters, digits,
// '.' and '_' (others are '_'), at most 64 of them; and 16 hexadecimal digits
// each of what the kernel calls this machine and this start of it.
struct Host {
  std::string name;
  std::string machine;
  std::string boot;

  // This one, as it is now.
  static Host Current();
  // Nothing: it is no such text.
  static std::optional<Host> Parse(absl::string_view text);
  std::string Text() const;

  friend bool operator==(const Host&, const Host&) = default;
};

// Whether no process of `host` lives unless it is of this start of this
// machine: it is this start, or an earlier one of this machine. A machine is
// known again by its id and name, which both are the same.
bool IsKnownHere(const Host& host);

// Whether a lock on files there is one for all who can open them: the file
// system is one machine's own. False where others may have it mounted (NFS,
// Lustre, 9p, FUSE) or it is not known.
bool LocksCountForAll(int fd);

}  // namespace terrace
