# cuobjdump -sass: the innermost loops that multiply. Name, instructions, HMMA, FFMA, and those of the pipe for bits and
# integers, which takes one of a warp every second clock.
function pad(x)
{
	return substr("00000000", 1, 8 - length(x)) x
}

function end(   i, k, inner, j, h, f, a)
{
	for (i = 0; i < loops; i++) {
		inner = 1
		for (k = 0; k < loops; k++)
			if (k != i && from[k] >= from[i] && to[k] <= to[i])
				inner = 0
		h = f = a = 0
		for (j = from[i]; j <= to[i]; j++) {
			h += word[j] ~ /^HMMA/
			f += word[j] ~ /^FFMA/
			a += word[j] ~ /^(LOP3|SHF|PRMT|IADD|ISETP|SEL|LEA|FSETP|FSEL|FMNMX|F2FP|VI|PLOP3)/
		}
		if (inner && (h || f >= 16))
			print name, to[i] - from[i] + 1, h, f, a
	}
	n = loops = 0
}
/Function :/ { end(); name = $3 }
/^[ \t]*\/\*[0-9a-f]+\*\// {
	at = $1
	gsub(/[^0-9a-f]/, "", at)
	place[pad(at)] = n
	word[n] = $2 ~ /^@/ ? $3 : $2
	if (word[n] ~ /^BRA/ && match($0, /0x[0-9a-f]+ *;/)) {
		at = substr($0, RSTART + 2, RLENGTH - 3)
		gsub(/ /, "", at)
		at = pad(at)
		if (at in place && place[at] <= n && last[at] == name) {
			from[loops] = place[at]
			to[loops++] = n
		}
	}
	gsub(/[^0-9a-f]/, "", $1)
	last[pad($1)] = name
	n++
}
END { end() }
