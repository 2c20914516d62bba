// A GroupFetch brings the tensors that one thread asks for: as one group, but
// for those that other threads bring already, which it waits for.
//
// It belongs to one thread. No two threads wait for each other here: each has
// its own group first, and only then waits for what others bring.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libtorch/hook/window/window_pins.h"

namespace terrace {

class GroupFetch {
 public:
  using Tensors = WindowPins::Tensors;
  // Both outlive the object. `checks`: the bytes that come are noted, to find
  // writes without a mark.
  GroupFetch(WindowPins& pins, const FetchAsker& asker, absl::Time deadline,
             bool checks)
      : pins_(pins),
        asker_(asker),
        deadline_(deadline),
        checks_(checks),
        in_use_(asker.in_use.begin(), asker.in_use.end()) {}

  // Returns OK once all are resident, else why one is not. The caller has them
  // pinned.
  absl::Status Bring(Tensors tensors);

 private:
  // Takes those that are to be brought, with their words in loading; those that
  // others bring go to `others`.
  Tensors TakeMine(const Tensors& tensors, Tensors* others);
  // LoadAll and Load bring these and end their loading. Where a group fails,
  // one of its tensors may be at fault: the others come without it.
  void LoadAll(const Tensors& mine);
  absl::Status Load(const Tensors& mine);
  void Place(WindowTensor& tensor, Pin pin);
  // Ends the tensor's loading. An operation that asked is refused the tensor;
  // it stays so where something failed, and until the next use where there was
  // no room.
  void Fail(WindowTensor& tensor, const absl::Status& why);
  std::string TooMuch(const absl::Status& why) const;
  void Await(const Tensors& others);

  WindowPins& pins_;
  const FetchAsker& asker_;
  const absl::Time deadline_;
  const bool checks_;
  Tensors in_use_;  // what the thread has, and waits with
  absl::Status status_;
};

}  // namespace terrace
