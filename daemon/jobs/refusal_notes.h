// What processes of jobs were refused while they were served, for one thread
// that tells it. Any thread adds, without a lock: a thread that has stopped
// holds up nobody.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

class RefusalNotes {
 public:
  struct Note {
    Peer peer;
    absl::Status why;
  };
  // What is beyond these is lost, until they are taken.
  static constexpr int64_t kMost = 1024;

  RefusalNotes() = default;
  ~RefusalNotes() { Take(); }
  RefusalNotes(const RefusalNotes&) = delete;
  RefusalNotes& operator=(const RefusalNotes&) = delete;

  // True: there was none before it, so that whoever takes them is to be told.
  bool Add(const Peer& peer, absl::Status why) {
    if (count_.fetch_add(1) >= kMost) {
      count_.fetch_sub(1);
      return false;
    }
    auto node = std::make_unique<Node>(Node{{peer, std::move(why)}, nullptr});
    node->next = newest_.load();
    while (!newest_.compare_exchange_weak(node->next, node.get())) {
    }
    const bool is_first = node->next == nullptr;
    node.release();
    return is_first;
  }
  // The newest first. One thread's.
  std::vector<Note> Take() {
    std::vector<Note> notes;
    std::unique_ptr<Node> node(newest_.exchange(nullptr));
    while (node != nullptr) {
      notes.push_back(std::move(node->note));
      node.reset(node->next);
      count_.fetch_sub(1);
    }
    return notes;
  }

 private:
  struct Node {
    Note note;
    Node* next = nullptr;
  };

  std::atomic<Node*> newest_ = nullptr;
  std::atomic<int64_t> count_ = 0;
};

}  // namespace terrace
