/*
 * What the client library says in words: codes, and ids as hex digits.
 */
#include <string.h>

#include "clients/client.h"
#include "sched/check.h"

const char *hf_name(int code)
{
	return err_name(code);
}

const char *hf_text(int code)
{
	return err_text(code);
}

bool hf_later(int code)
{
	switch (code < 0 ? -(long)code : code) {
	case ERR_LIMIT:
	case ERR_SESSION_BUSY:
	case ERR_OVERLOADED:
	case ERR_DRAINING:
	case ERR_AUDIT_STALLED:
	case ERR_LOG_FULL:
	case ERR_DEADLINE:
	case ERR_TIMEOUT:
	case ERR_CLOSED:
	case ERR_NO_FILE:
	case ERR_RESTARTED:
		return true;
	default:
		return false;
	}
}

void hf_id_text(const struct hf_id *id, char out[33])
{
	static const char digits[] = "0123456789abcdef";
	for (int i = 0; i < 16; i++) {
		out[2 * i] = digits[id->bytes[i] >> 4];
		out[2 * i + 1] = digits[id->bytes[i] & 15];
	}
	out[32] = 0;
}

bool hf_id_read(const char *text, struct hf_id *out)
{
	struct hf_id id = {{0}};
	if (!text || strlen(text) != 32)
		return false;
	for (int i = 0; i < 32; i++) {
		char c = text[i];
		int digit = c >= '0' && c <= '9' ? c - '0' :
			c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (digit < 0)
			return false;
		id.bytes[i / 2] = (uint8_t)(id.bytes[i / 2] << 4 | digit);
	}
	*out = id;
	return true;
}
