#include "daemon/config/quota.h"

namespace terrace {

void Quota::FillFrom(const Quota& other) {
  tier_bytes.insert(other.tier_bytes.begin(), other.tier_bytes.end());
  if (!arenas.has_value()) arenas = other.arenas;
  if (!connections.has_value()) connections = other.connections;
  if (!requests.has_value()) requests = other.requests;
  if (!weight.has_value()) weight = other.weight;
}

}  // namespace terrace
