#include "base/threads/own_loop.h"

namespace terrace {
namespace {

constinit thread_local Heartbeat* own = nullptr;

}  // namespace

OwnLoop::OwnLoop(Heartbeat* heartbeat) { own = heartbeat; }

OwnLoop::~OwnLoop() { own = nullptr; }

void OwnLoop::Beat() {
  if (own != nullptr) own->Beat();
}

void OwnLoop::SetServed(int64_t session) {
  if (own != nullptr) own->SetServed(session);
}

}  // namespace terrace
