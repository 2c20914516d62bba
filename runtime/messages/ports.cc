#include "runtime/messages/ports.h"

namespace terrace {

std::shared_ptr<Port> Ports::Open() {
  MutexLock lock(mutex_);
  absl::erase_if(ports_,
                 [](const auto& each) { return each.second.expired(); });
  const ClientId client = next_++;
  auto port = std::make_shared<Port>(client, pins_);
  ports_[client] = port;
  return port;
}

void Ports::Deliver(RequestId id, Answer answer) const {
  if (id.empty()) return;
  const std::shared_ptr<Port> port = Find(id.client);
  if (port != nullptr) port->Deliver(id.number, std::move(answer));
}

std::shared_ptr<QueuePort> Ports::OpenQueue(ClientId client,
                                            int64_t queue) const {
  const std::shared_ptr<Port> port = Find(client);
  if (port != nullptr) return port->OpenQueue(queue);
  return std::make_shared<QueuePort>(pins_);
}

std::shared_ptr<BytePort> Ports::OpenBytes(ClientId client,
                                           int64_t queue) const {
  const std::shared_ptr<Port> port = Find(client);
  if (port != nullptr) return port->OpenBytes(queue);
  return std::make_shared<BytePort>(pins_);
}

std::shared_ptr<Port> Ports::Find(ClientId client) const {
  MutexLock lock(mutex_);
  const auto found = ports_.find(client);
  return found == ports_.end() ? nullptr : found->second.lock();
}

}  // namespace terrace
