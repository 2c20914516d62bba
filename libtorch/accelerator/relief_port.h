// Where a device's caching allocator asks for memory back. It does so on each
// miss of its cache, on any thread, in the middle of an allocation, with its
// own lock held; the object that it calls is made anew each time, so that all
// it can have is this port, which lives for ever.
//
// What hears it therefore never waits, for a lock, for a stream or for a disk:
// whatever it would wait for may itself be waiting for the allocator. It
// allocates nothing of the device and ends nothing but blocks.
//
//   ReliefPort port;
//   port.Attach(&source);  // from here on Relieve() reaches it
//   port.Detach();         // none is in it, and none comes any more
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace {

// What the port reaches. Called under the allocator's lock, on several threads
// at a time where there are several devices.
class ReliefSource {
 public:
  virtual ~ReliefSource() = default;
  // On the calling thread: a graph has the addresses of what would go.
  virtual bool IsCapturing() = 0;
  // Nothing has to go; at once, whatever there is.
  virtual bool IsUnderBudget() = 0;
  // Gives back what needs no copy and that nothing uses; the bytes.
  virtual int64_t DropClean() = 0;
};

class ReliefPort {
 public:
  constexpr ReliefPort() = default;
  ReliefPort(const ReliefPort&) = delete;
  ReliefPort& operator=(const ReliefPort&) = delete;

  // The allocator's call: whether it should look again. False without a source,
  // during a capture, under budget, and within itself on the same thread.
  // Throws nothing.
  bool Relieve() noexcept;

  // False, and nothing changes: another is attached.
  bool Attach(ReliefSource* source);
  // Waits for the calls that are in the source, which wait for nothing. Not
  // from within one.
  void Detach();

 private:
  // A call counts itself, then looks at the source; Detach takes the source
  // away, then looks at the count: sequentially consistent, so that one of the
  // two sees the other.
  std::atomic<ReliefSource*> source_ = nullptr;
  std::atomic<int32_t> calls_ = 0;
};

}  // namespace terrace
