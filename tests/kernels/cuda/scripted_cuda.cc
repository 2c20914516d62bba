#include "tests/kernels/cuda/scripted_cuda.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {
namespace {

constexpr size_t kCapacity = size_t{64} << 20;

ScriptedCuda* current = nullptr;

}  // namespace

// The table's functions.
struct ScriptedCalls {
  static ScriptedCuda& cuda() {
    TERRACE_CHECK(current != nullptr);
    return *current;
  }

  static const char* ErrorName(int code) {
    switch (code) {
      case ScriptedCuda::kInvalid:
        return "cudaErrorInvalidValue";
      case ScriptedCuda::kNoMemory:
        return "cudaErrorMemoryAllocation";
      case ScriptedCuda::kIllegalAddress:
        return "cudaErrorIllegalAddress";
      default:
        return "cudaErrorScripted";
    }
  }
  static const char* ErrorText(int) { return "as the script says"; }
  static void ForgetError() {}

  static int CountDevices(int* count) {
    *count = cuda().devices_;
    return cuda().Enter("count_devices");
  }
  static int Memory(int, size_t* free, size_t* total) {
    *free = *total = kCapacity;
    return cuda().Enter("memory");
  }
  static int Allocate(int, void** address, size_t bytes) {
    if (const int code = cuda().Enter("allocate"); code != 0) return code;
    if (bytes > kCapacity) return ScriptedCuda::kNoMemory;
    auto made = std::make_unique<std::byte[]>(bytes);
    *address = made.get();
    cuda().memory_[*address] = std::move(made);
    return 0;
  }
  static int Free(int, void* address) {
    const int code = cuda().Enter("free");
    if (cuda().memory_.erase(address) == 0) return ScriptedCuda::kInvalid;
    return code;
  }
  static int RegisterHost(int, void* address, size_t bytes) {
    if (const int code = cuda().Enter("register_host"); code != 0) return code;
    cuda().pieces_[static_cast<std::byte*>(address)] = bytes;
    return 0;
  }
  static int UnregisterHost(int, void* address) {
    const int code = cuda().Enter("unregister_host");
    const auto erased = cuda().pieces_.erase(static_cast<std::byte*>(address));
    return erased == 0 ? ScriptedCuda::kInvalid : code;
  }
  static int Synchronize(int) { return cuda().Enter("synchronize"); }

  static int MakeStream(int, void** stream) {
    if (const int code = cuda().Enter("make_stream"); code != 0) return code;
    auto made = std::make_unique<ScriptedCuda::Stream>();
    *stream = made.get();
    cuda().streams_[*stream] = std::move(made);
    return 0;
  }
  static int DestroyStream(int, void* stream) {
    const int code = cuda().Enter("destroy_stream");
    return cuda().streams_.erase(stream) == 0 ? ScriptedCuda::kInvalid : code;
  }
  static int QueryStream(int, void* stream) {
    if (const int code = cuda().Enter("query_stream"); code != 0) return code;
    return StreamOf(stream).work.empty() ? 0 : ScriptedCuda::kNotReady;
  }
  static int SynchronizeStream(int, void* stream) {
    if (const int code = cuda().Enter("synchronize_stream"); code != 0) {
      return code;
    }
    cuda().DoAll(StreamOf(stream));
    return 0;
  }
  static int Copy(int, void* target, const void* source, size_t bytes,
                  int to_device, void* stream) {
    if (const int code = cuda().Enter("copy"); code != 0) return code;
    const auto* const host =
        static_cast<const std::byte*>(to_device != 0 ? source : target);
    if (cuda().CrossesPieces(host, bytes)) return ScriptedCuda::kInvalid;
    ++cuda().copies_;
    StreamOf(stream).work.emplace_back([=] {
      std::memcpy(target, source, bytes);
      return true;
    });
    return 0;
  }
  static int CallHost(int, void* stream, void (*run)(void*), void* argument) {
    if (const int code = cuda().Enter("call_host"); code != 0) return code;
    StreamOf(stream).work.emplace_back([=] {
      run(argument);
      return true;
    });
    return 0;
  }

  static int MakeEvent(int, void** event) {
    if (const int code = cuda().Enter("make_event"); code != 0) return code;
    auto made = std::make_shared<ScriptedCuda::Event>();
    *event = made.get();
    cuda().events_[*event] = std::move(made);
    return 0;
  }
  static int DestroyEvent(int, void* event) {
    const int code = cuda().Enter("destroy_event");
    return cuda().events_.erase(event) == 0 ? ScriptedCuda::kInvalid : code;
  }
  static int Record(int, void* event, void* stream) {
    if (const int code = cuda().Enter("record"); code != 0) return code;
    const auto recorded = cuda().events_.at(event);
    recorded->done = false;
    StreamOf(stream).work.emplace_back([recorded] {
      recorded->done = true;
      return true;
    });
    return 0;
  }
  static int Query(int, void* event) {
    if (const int code = cuda().Enter("query"); code != 0) return code;
    cuda().DoSome();
    return cuda().events_.at(event)->done ? 0 : ScriptedCuda::kNotReady;
  }
  static int WaitFor(int, void* stream, void* event) {
    if (const int code = cuda().Enter("wait_for"); code != 0) return code;
    StreamOf(stream).work.emplace_back(
        [waited = cuda().events_.at(event)] { return waited->done; });
    return 0;
  }

  static ScriptedCuda::Stream& StreamOf(void* stream) {
    return *cuda().streams_.at(stream);
  }
};

ScriptedCuda::ScriptedCuda() {
  TERRACE_CHECK(current == nullptr);
  current = this;
}

ScriptedCuda::~ScriptedCuda() { current = nullptr; }

const TerraceCudaCalls& ScriptedCuda::calls() {
  using C = ScriptedCalls;
  static constexpr TerraceCudaCalls kCalls = {
      .version = TERRACE_CUDA_CALLS_VERSION,
      .not_ready = kNotReady,
      .no_memory = kNoMemory,
      .error_name = C::ErrorName,
      .error_text = C::ErrorText,
      .forget_error = C::ForgetError,
      .count_devices = C::CountDevices,
      .memory = C::Memory,
      .allocate = C::Allocate,
      .free = C::Free,
      .register_host = C::RegisterHost,
      .unregister_host = C::UnregisterHost,
      .synchronize = C::Synchronize,
      .make_stream = C::MakeStream,
      .destroy_stream = C::DestroyStream,
      .query_stream = C::QueryStream,
      .synchronize_stream = C::SynchronizeStream,
      .copy = C::Copy,
      .call_host = C::CallHost,
      .make_event = C::MakeEvent,
      .destroy_event = C::DestroyEvent,
      .record = C::Record,
      .query = C::Query,
      .wait_for = C::WaitFor,
  };
  return kCalls;
}

int ScriptedCuda::Enter(const char* call) {
  last_call_ = call;
  const int64_t number = made_++;
  if (broken_ != 0) return broken_;
  const auto found = faults_.find(number);
  return found == faults_.end() ? 0 : found->second;
}

std::string ScriptedCuda::Outstanding() const {
  std::string text;
  const auto add = [&text](size_t count, const char* what) {
    if (count == 0) return;
    absl::StrAppend(&text, text.empty() ? "" : ", ", count, " ", what);
  };
  add(memory_.size(), "blocks");
  add(pieces_.size(), "pieces");
  add(streams_.size(), "streams");
  add(events_.size(), "events");
  return text;
}

bool ScriptedCuda::DoSome() {
  if (holds_ || broken_ != 0) return false;
  bool did = false;
  for (const auto& [key, stream] : streams_) {
    if (stream->work.empty() || !stream->work.front()()) continue;
    stream->work.pop_front();
    did = true;
  }
  return did;
}

void ScriptedCuda::DoAll(Stream& stream) {
  while (!stream.work.empty()) TERRACE_CHECK(DoSome());
}

bool ScriptedCuda::CrossesPieces(const std::byte* host, size_t bytes) const {
  const auto after =
      pieces_.upper_bound(const_cast<std::byte*>(host + bytes - 1));
  if (after == pieces_.begin()) return false;
  // The piece of the last byte must be that of the first, or there is none.
  const auto& [begin, size] = *std::prev(after);
  if (host + bytes - 1 >= begin + size) {
    return begin + size > host;  // it begins in one and ends in none
  }
  return host < begin;
}

}  // namespace terrace
