// A CUDA runtime of plain memory behind the table of calls: streams are lists
// of work, of which each query lets some be done. Any call can be told to fail,
// once or, as CUDA's sticky errors do, from there on. Keeps account of what was
// made and not given back, and of copies that CUDA would refuse.
//
// One at a time, as the table has no context; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_calls.h"

namespace terrace {

class ScriptedCuda {
 public:
  static constexpr int kInvalid = 1;
  static constexpr int kNoMemory = 2;
  static constexpr int kNotReady = 600;
  static constexpr int kIllegalAddress = 700;

  ScriptedCuda();
  ~ScriptedCuda();
  ScriptedCuda(const ScriptedCuda&) = delete;
  ScriptedCuda& operator=(const ScriptedCuda&) = delete;

  static const TerraceCudaCalls& calls();

  // The `number`th call from here on, from 0, fails.
  void Fail(int64_t number, int code) { faults_[made_ + number] = code; }
  // Everything fails from here on, what is under way too.
  void Break(int code) { broken_ = code; }
  // Work is not done before this is called.
  void Hold() { holds_ = true; }
  void LetGo() { holds_ = false; }
  void set_devices(int count) { devices_ = count; }

  // Of each stream the first work, if it can be done; whether any was.
  bool DoSome();

  // Calls of the table but for the names of errors and the like.
  int64_t made() const { return made_; }
  const std::string& last_call() const { return last_call_; }
  // "2 streams, 1 event"; empty: all was given back.
  std::string Outstanding() const;
  int copies() const { return copies_; }

 private:
  friend struct ScriptedCalls;
  struct Event {
    bool done = true;
  };
  struct Stream {
    std::list<std::function<bool()>> work;  // false: not yet
  };

  // The code that the call fails with; 0: it goes on.
  int Enter(const char* call);
  void DoAll(Stream& stream);
  bool CrossesPieces(const std::byte* host, size_t bytes) const;

  std::map<int64_t, int> faults_;
  int broken_ = 0;
  bool holds_ = false;
  int devices_ = 1;
  int64_t made_ = 0;
  std::string last_call_;
  int copies_ = 0;
  std::map<void*, std::unique_ptr<std::byte[]>> memory_;
  std::map<std::byte*, size_t> pieces_;
  std::map<void*, std::unique_ptr<Stream>> streams_;
  std::map<void*, std::shared_ptr<Event>> events_;
};

}  // namespace terrace
