// The kernel's small text files, below a root that a test can make: "" is the
// machine's own. What is not there, or cannot be read, is unknown: an empty
// text, -1, an empty list. Paths start with a slash. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

class PseudoFiles {
 public:
  explicit PseudoFiles(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }

  // All of a file, without blanks at its ends.
  std::string Text(const std::string& path) const;
  std::vector<std::string> Lines(const std::string& path) const;
  // The number that all of a file is; `kNoLimit` for "max".
  int64_t Number(const std::string& path) const;
  // Of "always [madvise] never" the word in brackets; all of it without any.
  std::string Choice(const std::string& path) const;
  // What follows `key` and a colon in a file of such lines: "MemTotal".
  std::string Field(const std::string& path, const std::string& key) const;

  bool Exists(const std::string& path) const;
  // Names in a folder, sorted.
  std::vector<std::string> Names(const std::string& path) const;
  // Links followed, below the root; empty if there is no such file.
  std::string Resolve(const std::string& path) const;

 private:
  std::string root_;
};

}  // namespace terrace
