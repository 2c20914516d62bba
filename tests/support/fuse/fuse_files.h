// The tree of files that fuse_fault_server.cc serves, in memory. Nodes are
// named by numbers, 1 is the root; one that is unlinked stays until the end.
// Errors are errnos, 0 is none. Thread-safe.
#pragma once

#include <linux/fuse.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace terrace {

class FuseFiles {
 public:
  static constexpr uint64_t kRoot = 1;

  FuseFiles() { nodes_[kRoot].mode = S_IFDIR | 0755; }

  int Look(uint64_t parent, const std::string& name, uint64_t* node) {
    MutexLock lock(mutex_);
    const Node& folder = nodes_[parent];
    const auto found = folder.children.find(name);
    if (found == folder.children.end()) return ENOENT;
    *node = found->second;
    return 0;
  }

  int Make(uint64_t parent, const std::string& name, uint32_t mode,
           uint64_t* node) {
    MutexLock lock(mutex_);
    if (nodes_[parent].children.contains(name)) return EEXIST;
    *node = ++last_;
    nodes_[parent].children[name] = *node;
    nodes_[*node].mode = mode;
    nodes_[*node].cached = name.ends_with(".cached");
    return 0;
  }

  int Remove(uint64_t parent, const std::string& name, bool folder) {
    MutexLock lock(mutex_);
    auto& siblings = nodes_[parent].children;
    const auto found = siblings.find(name);
    if (found == siblings.end()) return ENOENT;
    Node& node = nodes_[found->second];
    if (S_ISDIR(node.mode) != folder) return folder ? ENOTDIR : EISDIR;
    if (!node.children.empty()) return ENOTEMPTY;
    node.links = 0;
    siblings.erase(found);
    return 0;
  }

  // A file of the new name is replaced, a folder is not.
  int Rename(uint64_t parent, const std::string& name, uint64_t new_parent,
             const std::string& new_name) {
    MutexLock lock(mutex_);
    auto& siblings = nodes_[parent].children;
    const auto found = siblings.find(name);
    if (found == siblings.end()) return ENOENT;
    const auto replaced = nodes_[new_parent].children.find(new_name);
    if (replaced != nodes_[new_parent].children.end()) {
      if (S_ISDIR(nodes_[replaced->second].mode)) return EEXIST;
      nodes_[replaced->second].links = 0;
    }
    const uint64_t node = found->second;
    siblings.erase(found);
    nodes_[new_parent].children[new_name] = node;
    return 0;
  }

  fuse_attr Attributes(uint64_t number) {
    MutexLock lock(mutex_);
    const Node& node = nodes_[number];
    fuse_attr attr = {};
    attr.ino = number;
    attr.size = node.bytes.size();
    attr.blocks = (node.bytes.size() + 511) / 512;
    attr.mode = node.mode;
    attr.nlink = node.links;
    attr.blksize = 4096;
    return attr;
  }

  // Whether it was made by a name that ends so: ".cached".
  bool IsCached(uint64_t node) {
    MutexLock lock(mutex_);
    return nodes_[node].cached;
  }

  void Resize(uint64_t node, uint64_t size) {
    MutexLock lock(mutex_);
    nodes_[node].bytes.resize(size);
  }
  void GrowTo(uint64_t node, uint64_t size) {
    MutexLock lock(mutex_);
    auto& bytes = nodes_[node].bytes;
    bytes.resize(std::max<size_t>(bytes.size(), size));
  }

  std::vector<char> Read(uint64_t node, uint64_t offset, uint64_t size) {
    MutexLock lock(mutex_);
    const auto& bytes = nodes_[node].bytes;
    const size_t from = std::min<size_t>(bytes.size(), offset);
    const size_t end = std::min<size_t>(bytes.size(), offset + size);
    return {bytes.begin() + static_cast<ptrdiff_t>(from),
            bytes.begin() + static_cast<ptrdiff_t>(end)};
  }
  void Write(uint64_t node, uint64_t offset, const char* data, uint64_t size) {
    MutexLock lock(mutex_);
    auto& bytes = nodes_[node].bytes;
    bytes.resize(std::max<size_t>(bytes.size(), offset + size));
    std::memcpy(bytes.data() + offset, data, size);
  }

  // Entries from the `from`-th on, as many as fit, as READDIR wants them.
  std::vector<char> List(uint64_t node, uint64_t from, uint64_t room) {
    MutexLock lock(mutex_);
    std::vector<char> list;
    uint64_t position = 0;
    for (const auto& [name, number] : nodes_[node].children) {
      if (position++ < from) continue;
      fuse_dirent entry = {};
      entry.ino = number;
      entry.off = position;
      entry.namelen = static_cast<uint32_t>(name.size());
      entry.type = nodes_[number].mode >> 12;
      const size_t at = list.size();
      const size_t end = at + FUSE_DIRENT_ALIGN(sizeof(entry) + name.size());
      if (end > room) break;
      list.resize(end);
      std::memcpy(list.data() + at, &entry, sizeof(entry));
      std::memcpy(list.data() + at + sizeof(entry), name.data(), name.size());
    }
    return list;
  }

 private:
  struct Node {
    uint32_t mode = 0;
    uint32_t links = 1;
    bool cached = false;
    std::vector<char> bytes;
    std::map<std::string, uint64_t> children;
  };

  Mutex mutex_;
  std::map<uint64_t, Node> nodes_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = kRoot;
};

}  // namespace terrace
