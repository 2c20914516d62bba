// The calls of the CUDA runtime that a device is made of, as one table of C
// functions: what the module libterrace_cuda.so answers its one entry with.
// The library has no symbol of CUDA; it opens the module when a device is asked
// for (open_cuda.h). Tests have a table of their own.
//
// Every call returns the runtime's code, 0 if it went well, and works on the
// device of that number, whichever is current in the calling thread, which
// stays so. Streams and events are opaque. Thread-safe, as the runtime is.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct TerraceCudaCalls {
  uint32_t version;  // TERRACE_CUDA_CALLS_VERSION
  int not_ready;     // what `query` returns of work that has not ended
  int no_memory;     // what a call returns that has no room

  const char* (*error_name)(int code);
  const char* (*error_text)(int code);
  // The thread's last error, if it can be forgotten, is.
  void (*forget_error)(void);

  int (*count_devices)(int* count);
  int (*memory)(int device, size_t* free, size_t* total);
  int (*allocate)(int device, void** address, size_t bytes);
  int (*free)(int device, void* address);
  int (*register_host)(int device, void* address, size_t bytes);
  int (*unregister_host)(int device, void* address);
  int (*synchronize)(int device);

  // One that neither waits for the default stream nor is waited for.
  int (*make_stream)(int device, void** stream);
  int (*destroy_stream)(int device, void* stream);
  int (*query_stream)(int device, void* stream);
  int (*synchronize_stream)(int device, void* stream);
  int (*copy)(int device, void* target, const void* source, size_t bytes,
              int to_device, void* stream);
  // Calls `run`, on a thread of the driver's, after what the stream has; not
  // if that fails.
  int (*call_host)(int device, void* stream, void (*run)(void*),
                   void* argument);

  int (*make_event)(int device, void** event);
  int (*destroy_event)(int device, void* event);
  int (*record)(int device, void* event, void* stream);
  int (*query)(int device, void* event);
  // What comes later in the stream waits for the event.
  int (*wait_for)(int device, void* stream, void* event);
};

#define TERRACE_CUDA_CALLS_VERSION 1u
#define TERRACE_CUDA_CALLS_ENTRY "terrace_cuda_calls"

// The module's one entry; the table stays for ever.
const struct TerraceCudaCalls* terrace_cuda_calls(void);

}  // extern "C"
